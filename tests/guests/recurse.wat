;; Calls itself for ever.
(func $deeper (param $n i64) (result i64)
  (i64.add (local.get $n) (call $deeper (i64.add (local.get $n) (i64.const 1)))))
(func $evaluate (param $request i32) (result i32)
  (if (i32.eqz (call $tried (local.get $request))) (then (drop (call $deeper (i64.const 0)))))
  (global.get $decision))
