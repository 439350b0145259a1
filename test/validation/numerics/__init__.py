"""Attention problems by cases, families and draws, and their judge."""
