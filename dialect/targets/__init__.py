"""What each chip has."""
