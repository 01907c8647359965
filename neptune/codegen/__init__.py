"""Text of kernels: Triton from tile programs, TVMScript for LLVM, and the processes that compile and run them."""
