"""What an application answers over HTTP, if it is asked to listen: metrics, health, and its page."""
