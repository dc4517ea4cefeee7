;; Divides for ever where its settings are long, and passes where they are short: one owner's policy that loops. It demands
;; nothing: the list of demands in the prepared answer is emptied.
(global $long (mut i32) (i32.const 0))
(func $configure (param $at i32) (param $size i32) (result i32)
  (local $part i32)
  (global.set $long (i32.gt_u (local.get $size) (i32.const 8)))
  (local.set $part (global.get $decision))
  (loop $next
    (if (i32.ne (i32.load (local.get $part)) (global.get $obligations))
      (then
        (local.set $part (i32.add (local.get $part) (i32.const 4)))
        (br $next))))
  (i32.store offset=4 (local.get $part) (i32.const 0))
  (global.get $buckets))
(func $evaluate (param $request i32) (result i32)
  (local $x i64)
  (if (i32.and (global.get $long) (i32.eqz (call $tried (local.get $request))))
    (then
      (loop $again
        (local.set $x (i64.div_u (i64.const 0x7fffffffffffffff) (i64.or (local.get $x) (i64.const 3))))
        (local.set $x (i64.div_u (i64.const 0x7ffffffffffffffd) (i64.or (local.get $x) (i64.const 5))))
        (br $again))))
  (global.get $decision))
