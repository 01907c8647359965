"""What runs the asynchronous form of sm_90, from data alone; `neptune.hopper` makes it."""
