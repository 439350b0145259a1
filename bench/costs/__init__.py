"""The cost of kernels in their code: of masks, modifiers and configurations, and of latent attention."""
