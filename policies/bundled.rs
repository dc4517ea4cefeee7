// The bundled policies, sorted by name: an expression to be included where a struct `Bundled` is in scope.
// Written by policies-build, not by hand.
&[
    Bundled {
        name: "clone-source",
        component: include_bytes!("clone-source/clone-source.wasm"),
        sha256: "1f642543dfd5a2bb0c9caf3bcbaddae1e7edac1bad9f4f8f7eafebf413584199",
        default_settings: include_str!("clone-source/default.json"),
    },
    Bundled {
        name: "extensions",
        component: include_bytes!("extensions/extensions.wasm"),
        sha256: "3dd4fb18c54d55a8f169a0f2de84b44fe1c676e77250a1ccd89bca54e1ac4d70",
        default_settings: include_str!("extensions/default.json"),
    },
    Bundled {
        name: "host-command",
        component: include_bytes!("host-command/host-command.wasm"),
        sha256: "c24da301536eb2b7846f37500aa39fb46302de3deaaccfda6706bf01ee1eb313",
        default_settings: include_str!("host-command/default.json"),
    },
    Bundled {
        name: "ownership",
        component: include_bytes!("ownership/ownership.wasm"),
        sha256: "6526e0c16b39b4f14a9b58cab6c049687bb2dad8c1bdef746591baf2ebcdd85e",
        default_settings: include_str!("ownership/default.json"),
    },
    Bundled {
        name: "quota",
        component: include_bytes!("quota/quota.wasm"),
        sha256: "8081dceced793241ee26e689f97b2e56e44efdca47474915b5256b1733229f93",
        default_settings: include_str!("quota/default.json"),
    },
    Bundled {
        name: "rate-limit",
        component: include_bytes!("rate-limit/rate-limit.wasm"),
        sha256: "a8bca6209ca6660289d254b68cb175b8da686fd088e4e3239d87a0d8186abac6",
        default_settings: include_str!("rate-limit/default.json"),
    },
    Bundled {
        name: "readonly",
        component: include_bytes!("readonly/readonly.wasm"),
        sha256: "051a3f833ed85627bf25244144979cb5741d5e3bf94c5ab3cdaf4fe837f6d15c",
        default_settings: include_str!("readonly/default.json"),
    },
    Bundled {
        name: "row-limit",
        component: include_bytes!("row-limit/row-limit.wasm"),
        sha256: "1d88d09bf20ae43f26c24849720ceeeb00a72efaff902828afbd487f1fcf3e68",
        default_settings: include_str!("row-limit/default.json"),
    },
    Bundled {
        name: "statement-guard",
        component: include_bytes!("statement-guard/statement-guard.wasm"),
        sha256: "3122e66bf7c6ad35ed45842e512841952b2e84d5c1ccb70cd960909f5780e27d",
        default_settings: include_str!("statement-guard/default.json"),
    },
]
