// The bundled policies: written by policies-build, not by hand. Holds nothing that is not built from `policies/`.

/// A policy that the program carries.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, unreachable_pub, reason = "whoever includes this decides what is used and how far it is seen")]
pub struct Bundled {
    /// Its name, as a policy file names it and as it describes itself.
    pub name: &'static str,
    /// The WebAssembly component.
    pub component: &'static [u8],
    /// The component's digest, in lower-case hexadecimal.
    pub sha256: &'static str,
    /// The settings it has where nobody configured any: a JSON object.
    pub default_settings: &'static str,
    /// Its cases file, in TOML.
    pub cases: &'static str,
}

/// Every bundled policy, sorted by name.
#[allow(dead_code, unreachable_pub, reason = "whoever includes this decides what is used and how far it is seen")]
pub static BUNDLED: &[Bundled] = &[
    Bundled {
        name: "clone-source",
        component: include_bytes!("clone-source/clone-source.wasm"),
        sha256: "c176c3fa68b454ef299cb78bbbda1077a1453572f8f28db33f98dd50b0c9ca22",
        default_settings: include_str!("clone-source/default.json"),
        cases: include_str!("clone-source/cases.toml"),
    },
    Bundled {
        name: "extensions",
        component: include_bytes!("extensions/extensions.wasm"),
        sha256: "b5211a5b521154bf6f1b934837a383bfc1ed9e5df51a4eeed68707b242b0f5c6",
        default_settings: include_str!("extensions/default.json"),
        cases: include_str!("extensions/cases.toml"),
    },
    Bundled {
        name: "host-command",
        component: include_bytes!("host-command/host-command.wasm"),
        sha256: "3cc19a2773abd218dd6db3d9c0d4254659b2a6120799822119c625744e64ff2e",
        default_settings: include_str!("host-command/default.json"),
        cases: include_str!("host-command/cases.toml"),
    },
    Bundled {
        name: "ownership",
        component: include_bytes!("ownership/ownership.wasm"),
        sha256: "de940b315afac58bc3a4e65ac6559af75dcee7147e8495a6c2fc7b994aa83484",
        default_settings: include_str!("ownership/default.json"),
        cases: include_str!("ownership/cases.toml"),
    },
    Bundled {
        name: "quota",
        component: include_bytes!("quota/quota.wasm"),
        sha256: "4ba48bedfb8cc18d52f7393c8a36fcc733fb15fb7e1e14dfcac85e93498b8ef8",
        default_settings: include_str!("quota/default.json"),
        cases: include_str!("quota/cases.toml"),
    },
    Bundled {
        name: "rate-limit",
        component: include_bytes!("rate-limit/rate-limit.wasm"),
        sha256: "79e1bfb561bc0f4747eb7ffa6e54a7106b6aa696bf2a8e57d47ffdf6c1056f04",
        default_settings: include_str!("rate-limit/default.json"),
        cases: include_str!("rate-limit/cases.toml"),
    },
    Bundled {
        name: "readonly",
        component: include_bytes!("readonly/readonly.wasm"),
        sha256: "c1cf33fcafab276818212a12fd51e5f188e5924e5705c604b4f7ba05e85ea6b0",
        default_settings: include_str!("readonly/default.json"),
        cases: include_str!("readonly/cases.toml"),
    },
    Bundled {
        name: "row-limit",
        component: include_bytes!("row-limit/row-limit.wasm"),
        sha256: "3c4a9af5e882aaf3dc5fbf0d0e02f93c6f6786d70c1b1b4b55eeb670cf4e398d",
        default_settings: include_str!("row-limit/default.json"),
        cases: include_str!("row-limit/cases.toml"),
    },
    Bundled {
        name: "statement-guard",
        component: include_bytes!("statement-guard/statement-guard.wasm"),
        sha256: "3344819461ded2920adc56ce3f4f26b5f89cb72da83fae8b4ac9af2ac8f344e0",
        default_settings: include_str!("statement-guard/default.json"),
        cases: include_str!("statement-guard/cases.toml"),
    },
];
