;; Claims a million obligations, more than its memory holds.
(func $evaluate (param $request i32) (result i32)
  (if (i32.eqz (call $tried (local.get $request)))
    (then
      (i32.store offset=48 (global.get $decision) (i32.const 1024))
      (i32.store offset=52 (global.get $decision) (i32.const 1000000))))
  (global.get $decision))
