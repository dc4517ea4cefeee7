;; Limits rows to the length of its settings, and keeps that in the size of a table: no snapshot holds it.
(func $configure (param $at i32) (param $size i32) (result i32)
  (drop (table.grow $table (ref.null func) (local.get $size)))
  (global.get $buckets))
(func $evaluate (param $request i32) (result i32)
  (i64.store offset=8 (global.get $obligations)
    (i64.extend_i32_u (i32.sub (table.size $table) (i32.const 1))))
  (global.get $decision))
