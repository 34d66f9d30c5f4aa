//! anabranch.
