"""Transports: MQTT for real fleets, memory for simulation and tests."""
