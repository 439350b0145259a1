"""What users call: attention over operands of any library, its lengths, factors and parts."""
