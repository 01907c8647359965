"""The cost model: the work of a kernel, what its programs keep busy of a machine, and the time that follows."""
