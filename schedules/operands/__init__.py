"""Where operands lie: storage operations, sequences, pages, lists of rows, factors."""
