"""Bundles as files: their members, fields and manifest, their cache, and who may be trusted."""
