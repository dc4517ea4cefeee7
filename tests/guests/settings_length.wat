;; Limits rows to the length of its settings: what it keeps from `configure` is in a memory and in a global.
(global $length (mut i64) (i64.const 0))
(func $configure (param $at i32) (param $size i32) (result i32)
  (global.set $length (i64.extend_i32_u (local.get $size)))
  (i64.store offset=8 (global.get $obligations) (global.get $length))
  (global.get $buckets))
(func $evaluate (param $request i32) (result i32)
  (if (i64.ne (global.get $length) (i64.load offset=8 (global.get $obligations))) (then (unreachable)))
  (global.get $decision))
