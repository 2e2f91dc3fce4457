"""What devices and aggregators say to each other. The bytes: docs/protocol.md."""
