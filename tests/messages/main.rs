//! All error messages of the macros, as the compiler shows them: one golden file each.
//!
//! `TRYBUILD=overwrite cargo test -p anabranch-messages` rewrites the files; read each of them
//! before committing it.

#[test]
fn messages_say_what_to_write_instead() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("ui/*/*.rs");
    // A pattern without matches would pass.
    let mut found = 0;
    for kind in std::fs::read_dir("ui").expect("tests run in the package's folder") {
        let kind = kind.expect("a readable folder").path();
        found += kind
            .read_dir()
            .map_or(0, |d| d.filter(|f| f.as_ref().is_ok_and(|f| f.path().extension() == Some("rs".as_ref()))).count());
    }
    assert!(found >= 30, "{found} cases");
}
