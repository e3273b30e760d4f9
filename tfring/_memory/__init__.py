"""Saves memory of the device: offloads feature maps, shards parameters."""
