"""Rings: slots, barriers, and handovers within a CTA and across a cluster."""
