"""What runs beside the broker."""
