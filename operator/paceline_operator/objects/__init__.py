"""One pure builder per kind of child: (Model, OperatorConfig) -> server-side apply document. Builders never await."""
