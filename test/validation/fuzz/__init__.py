"""Drawn calls, bundles, modules and PTX: a right result or a typed error."""
