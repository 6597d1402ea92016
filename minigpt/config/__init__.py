"""Settings: schema, sources, presets and YAML."""
