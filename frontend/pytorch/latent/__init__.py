"""Latent attention for PyTorch: its operators, and its gradients."""
