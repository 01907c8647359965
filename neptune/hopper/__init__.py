"""What is Hopper's: the asynchronous form of a kernel, its Gluon text, and the proof that its roles stay in step."""
