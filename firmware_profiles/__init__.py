"""What a class of device can do: one flat TOML file a class, read as package data."""
