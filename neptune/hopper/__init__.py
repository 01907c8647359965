"""The warp-specialised form of a kernel on Hopper: its Gluon text, and the proof that its roles stay in step."""
