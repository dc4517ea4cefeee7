//! Metadata: records, journal, migrations.
