//! Reads SQL: tokens, statements, classes, touched relations and functions. No database here.
