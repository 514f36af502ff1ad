"""The HTTP endpoints of an application, if the settings open them: metrics, health, and its page."""
