;; Divides for ever: much time for little fuel.
(func $evaluate (param $request i32) (result i32)
  (local $x i64)
  (if (i32.eqz (call $tried (local.get $request)))
    (then
      (loop $again
        (local.set $x (i64.div_u (i64.const 0x7fffffffffffffff) (i64.or (local.get $x) (i64.const 3))))
        (local.set $x (i64.div_u (i64.const 0x7ffffffffffffffd) (i64.or (local.get $x) (i64.const 5))))
        (local.set $x (i64.div_u (i64.const 0x7ffffffffffffffb) (i64.or (local.get $x) (i64.const 7))))
        (local.set $x (i64.div_u (i64.const 0x7ffffffffffffff9) (i64.or (local.get $x) (i64.const 9))))
        (br $again))))
  (global.get $decision))
