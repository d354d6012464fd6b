"""Complete plug-ins as scaffolds: `longca new` copies one of these files under the user's name. No module
imports them."""
