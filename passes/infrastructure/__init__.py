"""The infrastructure of passes: registry, pipelines, legality and parsing."""
