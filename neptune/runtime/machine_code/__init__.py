"""Machine code as the disassembler prints it, and what the assembler is known to get wrong."""
