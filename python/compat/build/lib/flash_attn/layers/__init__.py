"""Layers around the attention: rotary."""
