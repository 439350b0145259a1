"""Gradients of attention with scores and gradients in tensor memory."""
