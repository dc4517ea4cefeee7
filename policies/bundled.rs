// The bundled policies, sorted by name: an expression to be included where a struct `Bundled` is in scope.
// Written by policies-build, not by hand.
&[
    Bundled {
        name: "clone-source",
        component: include_bytes!("clone-source/clone-source.wasm"),
        sha256: "be7bed0b115bbdf248c608884406815b1f7a8e0d421279492b39901617e232b1",
        default_settings: include_str!("clone-source/default.json"),
        by_default: true,
    },
    Bundled {
        name: "extensions",
        component: include_bytes!("extensions/extensions.wasm"),
        sha256: "3ecb7e8d778350b9c26b85d5f170bf205095ddc12a6d57e3f75fc111574ea646",
        default_settings: include_str!("extensions/default.json"),
        by_default: true,
    },
    Bundled {
        name: "host-command",
        component: include_bytes!("host-command/host-command.wasm"),
        sha256: "c62f53ea2d29912b5a29dbf39649e12c1235b7eb63ae969f7cd1f8ce5887fd3b",
        default_settings: include_str!("host-command/default.json"),
        by_default: true,
    },
    Bundled {
        name: "ownership",
        component: include_bytes!("ownership/ownership.wasm"),
        sha256: "b906a236b2d6eb204bd883f2fcfe4a8f85bc8038cc5abf369dbaab518e06ee38",
        default_settings: include_str!("ownership/default.json"),
        by_default: true,
    },
    Bundled {
        name: "quota",
        component: include_bytes!("quota/quota.wasm"),
        sha256: "714c63a1a7b6d33f9439a20b93d5b3b8531c32290b8daf4ef947399b4e2028bb",
        default_settings: include_str!("quota/default.json"),
        by_default: true,
    },
    Bundled {
        name: "rate-limit",
        component: include_bytes!("rate-limit/rate-limit.wasm"),
        sha256: "984a158b12444909c19effed9c6ca64505d40e9ec8348abdf3b19970ce73624c",
        default_settings: include_str!("rate-limit/default.json"),
        by_default: true,
    },
    Bundled {
        name: "readonly",
        component: include_bytes!("readonly/readonly.wasm"),
        sha256: "6cbfc4ee8b0f3a67913a7eb788df66ffdb462157440ee0a778250ad6b5fed4b5",
        default_settings: include_str!("readonly/default.json"),
        by_default: true,
    },
    Bundled {
        name: "row-limit",
        component: include_bytes!("row-limit/row-limit.wasm"),
        sha256: "5a52e1c869d5cbb425a89f0196197ea1f34f24e9c339ed682cb1cea12345a95d",
        default_settings: include_str!("row-limit/default.json"),
        by_default: true,
    },
    Bundled {
        name: "rules",
        component: include_bytes!("rules/rules.wasm"),
        sha256: "0a819b70510f9131f2d219ba7fa0755eae46b2d457f00e423450bdfd455aacc0",
        default_settings: include_str!("rules/default.json"),
        by_default: false,
    },
    Bundled {
        name: "statement-guard",
        component: include_bytes!("statement-guard/statement-guard.wasm"),
        sha256: "c60a6c3e106663ef7e18b1ad8c108f482fac28e59e789a7f0f54689ae1e93cb9",
        default_settings: include_str!("statement-guard/default.json"),
        by_default: true,
    },
]
