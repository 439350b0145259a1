"""The table of passes, pipelines and diagnostics: what every pass stands on."""
