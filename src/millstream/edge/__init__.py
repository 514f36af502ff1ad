"""The edge: settings, the application, the command line. Only this layer combines drivers."""
