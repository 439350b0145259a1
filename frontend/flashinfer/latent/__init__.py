"""FlashInfer's latent attention, over `mla_decode`: with a plan, and in one call."""
