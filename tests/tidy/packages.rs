//! Packages that are published, and the profile that documents give to those who depend on them.

use super::text::words;
use super::{Report, check_wrong};

/// Each package that is published has a README, and the license texts of the root.
pub(crate) fn incomplete_packages(folders: &[&str], read: impl Fn(&str) -> Option<String>) -> Report {
    let mut report = Report::default();
    for folder in folders {
        let in_folder = |file: &str| if folder.is_empty() { file.to_owned() } else { format!("{folder}/{file}") };
        let manifest = read(&in_folder("Cargo.toml")).unwrap_or_default();
        if manifest.lines().any(|line| line == "publish = false") {
            continue;
        }
        for license in ["LICENSE-MIT", "LICENSE-APACHE"] {
            let text = read(&in_folder(license));
            report.look(text.is_some() && text == read(license), || {
                format!("{} is not the text of {license}: make it a link to it", in_folder(license))
            });
        }
        let names_readme = manifest.lines().any(|line| line == "readme = \"README.md\"");
        let has_readme = read(&in_folder("README.md")).is_some_and(|text| !text.trim().is_empty());
        report.look(names_readme && has_readme, || format!("{} has no README", in_folder("Cargo.toml")));
    }
    report
}

/// The first line of the profile.
const PROFILE: &str = "[profile.dev.package.\"*\"]";

/// All texts, each with its path, show the same lines of the profile that optimizes dependencies.
pub(crate) fn differing_profiles(texts: &[(&str, String)]) -> Report {
    let profile = |text: &str| -> Vec<String> {
        let lines = text.lines().skip_while(|line| *line != PROFILE);
        lines.take_while(|line| !line.is_empty() && !line.starts_with("```")).map(str::to_owned).collect()
    };
    let first = texts.first().map(|(_, text)| profile(text)).unwrap_or_default();
    let mut report = Report::default();
    for (path, text) in texts {
        let profile = profile(text);
        let optimizes = profile.iter().any(|line| words(line).eq(["opt-level", "3"]));
        report.look(optimizes, || format!("{path}: no `{PROFILE}` with `opt-level = 3`"));
        report.look(profile == first, || {
            format!("{path}: the profile differs from that of {}: {}", texts[0].0, profile.join(" | "))
        });
    }
    report
}

#[test]
fn a_package_without_licenses_or_readme_is_found() {
    let files = [
        ("Cargo.toml", "[workspace]\n[package]\nreadme = \"README.md\"\n"),
        ("LICENSE-MIT", "MIT"),
        ("LICENSE-APACHE", "Apache"),
        ("README.md", "# a"),
        ("b/Cargo.toml", "[package]\npublish = false\n"),
        ("c/Cargo.toml", "[package]\nreadme = \"README.md\"\n"),
        ("c/LICENSE-MIT", "MIT, but not the same"),
        ("d/Cargo.toml", "[package]\n"),
        ("d/LICENSE-MIT", "MIT"),
        ("d/LICENSE-APACHE", "Apache"),
        ("d/README.md", "# d"),
    ];
    let read = |path: &str| files.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned());
    let expected = [
        "c/LICENSE-MIT is not the text of LICENSE-MIT: make it a link to it",
        "c/LICENSE-APACHE is not the text of LICENSE-APACHE: make it a link to it",
        "c/Cargo.toml has no README",
        "d/Cargo.toml has no README",
    ];
    check_wrong(&incomplete_packages(&["", "b", "c", "d"], read), &expected);
}

#[test]
fn profiles_that_differ_are_found() {
    let profile = "[profile.dev.package.\"*\"]\nopt-level = 3\ndebug = false\n";
    let texts = [
        ("a.md", format!("```toml\n{profile}```\n")),
        ("b.toml", format!("# Fast.\n{profile}\n[lib]\n")),
        ("c.toml", profile.replace("debug = false\n", "")),
        ("d.toml", profile.replace('3', "2")),
        ("e.md", "None.\n".to_owned()),
    ];
    let expected = [
        "c.toml: the profile differs from that of a.md: [profile.dev.package.\"*\"] | opt-level = 3",
        "d.toml: no `[profile.dev.package.\"*\"]` with `opt-level = 3`",
        "d.toml: the profile differs from that of a.md: [profile.dev.package.\"*\"] | opt-level = 2 | debug = false",
        "e.md: no `[profile.dev.package.\"*\"]` with `opt-level = 3`",
        "e.md: the profile differs from that of a.md: ",
    ];
    check_wrong(&differing_profiles(&texts), &expected);
}
