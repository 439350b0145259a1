"""Recipes of tensor maps, each with an operand, boxes of it and what they hold."""
