// The bundled policies, sorted by name: an expression to be included where a struct `Bundled` is in scope.
// Written by policies-build, not by hand.
&[
    Bundled {
        name: "clone-source",
        component: include_bytes!("clone-source/clone-source.wasm"),
        sha256: "72f23a517fdefbdbc5c5bd30e9e5dba6c5727c6567d9d6e3726a4cecf4eb8a45",
        default_settings: include_str!("clone-source/default.json"),
    },
    Bundled {
        name: "extensions",
        component: include_bytes!("extensions/extensions.wasm"),
        sha256: "a21df20c9e7152c40fcc2011b6a266df0d524c0f8a9e1b11d579aa55ea94be72",
        default_settings: include_str!("extensions/default.json"),
    },
    Bundled {
        name: "host-command",
        component: include_bytes!("host-command/host-command.wasm"),
        sha256: "e86250687d2604a12544af1c1033e0b74c0e06d52d4b293eef7d0920b97d67aa",
        default_settings: include_str!("host-command/default.json"),
    },
    Bundled {
        name: "ownership",
        component: include_bytes!("ownership/ownership.wasm"),
        sha256: "4d2cd205f80dea4c1f9e06ba5fa12054d50f9edd7d76d387c9c4158def9fadce",
        default_settings: include_str!("ownership/default.json"),
    },
    Bundled {
        name: "quota",
        component: include_bytes!("quota/quota.wasm"),
        sha256: "9dea11de98d88d96b08859c2144153bd8e7d8e60b6e33d9dae637f1e8a054c5f",
        default_settings: include_str!("quota/default.json"),
    },
    Bundled {
        name: "rate-limit",
        component: include_bytes!("rate-limit/rate-limit.wasm"),
        sha256: "b4821b4c3d9c8d48d43f246345333e259676decc116fc2c44929321aa46a5b88",
        default_settings: include_str!("rate-limit/default.json"),
    },
    Bundled {
        name: "readonly",
        component: include_bytes!("readonly/readonly.wasm"),
        sha256: "e647b5510c89abe2b63b3f66d245e6bddeceeb28af17b34cf64c0aed4b02c322",
        default_settings: include_str!("readonly/default.json"),
    },
    Bundled {
        name: "row-limit",
        component: include_bytes!("row-limit/row-limit.wasm"),
        sha256: "9d70cc4b2c96141677f4608791f1e4a0859294d371e204337d493cc2eeb2071f",
        default_settings: include_str!("row-limit/default.json"),
    },
    Bundled {
        name: "statement-guard",
        component: include_bytes!("statement-guard/statement-guard.wasm"),
        sha256: "3cfc9cdb1563dfa0888b01331dff0044cdaddb65ed733a1cc2ae102cbe3b4174",
        default_settings: include_str!("statement-guard/default.json"),
    },
]
