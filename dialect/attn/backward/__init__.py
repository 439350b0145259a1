"""The operations of gradients of attention."""
