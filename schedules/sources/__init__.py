"""Who fills the stages of keys and values, and of queries."""
