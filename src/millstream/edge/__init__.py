"""The edge: settings, the application, the command line. The only place that combines drivers."""
