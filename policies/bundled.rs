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
        sha256: "a18cb7631cf262236ad7360b67dde6e6146a088023e7cd06a8558fa77b695118",
        default_settings: include_str!("clone-source/default.json"),
        cases: include_str!("clone-source/cases.toml"),
    },
    Bundled {
        name: "extensions",
        component: include_bytes!("extensions/extensions.wasm"),
        sha256: "656322ee94a7d74db3e918d32b18bb76a1dae1e4f6fbbf498760b9af55971d26",
        default_settings: include_str!("extensions/default.json"),
        cases: include_str!("extensions/cases.toml"),
    },
    Bundled {
        name: "host-command",
        component: include_bytes!("host-command/host-command.wasm"),
        sha256: "de23268b5ab8251daeb9e11b551bcd4c76d882ccdc08600f4ec055ae399e52b4",
        default_settings: include_str!("host-command/default.json"),
        cases: include_str!("host-command/cases.toml"),
    },
    Bundled {
        name: "ownership",
        component: include_bytes!("ownership/ownership.wasm"),
        sha256: "2854970372dd4c21dc12a1eedad765a9abbb26deb0aa1c00a91ddf29b87fbe2f",
        default_settings: include_str!("ownership/default.json"),
        cases: include_str!("ownership/cases.toml"),
    },
    Bundled {
        name: "quota",
        component: include_bytes!("quota/quota.wasm"),
        sha256: "e1e44cf98b81808de61f0dc89b718801176b3eb41ee4f99939de78c707f808a0",
        default_settings: include_str!("quota/default.json"),
        cases: include_str!("quota/cases.toml"),
    },
    Bundled {
        name: "rate-limit",
        component: include_bytes!("rate-limit/rate-limit.wasm"),
        sha256: "1fd8582661c415cd0ea33c38e8370d0ab9a3619e302bee6b76db7988a936d8d3",
        default_settings: include_str!("rate-limit/default.json"),
        cases: include_str!("rate-limit/cases.toml"),
    },
    Bundled {
        name: "readonly",
        component: include_bytes!("readonly/readonly.wasm"),
        sha256: "172e8ff463d3d0dd4c98f558541b309875d34dad99fc9d7465383a3eb76c7c74",
        default_settings: include_str!("readonly/default.json"),
        cases: include_str!("readonly/cases.toml"),
    },
    Bundled {
        name: "row-limit",
        component: include_bytes!("row-limit/row-limit.wasm"),
        sha256: "2b9ef4d17916ecbb9405ac6b41ef48398d338e54725151671bec76dab8be1040",
        default_settings: include_str!("row-limit/default.json"),
        cases: include_str!("row-limit/cases.toml"),
    },
    Bundled {
        name: "statement-guard",
        component: include_bytes!("statement-guard/statement-guard.wasm"),
        sha256: "b1f4bd6ef16a71a15f6a9cbb3df615e45621af925bb14059b75e407fb8cedd5a",
        default_settings: include_str!("statement-guard/default.json"),
        cases: include_str!("statement-guard/cases.toml"),
    },
];
