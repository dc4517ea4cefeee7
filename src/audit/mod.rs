//! Opening and closing entries; the hash chain; where they go.
