"""What an application reports about itself."""
